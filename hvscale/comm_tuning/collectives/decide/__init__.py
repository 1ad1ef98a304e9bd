"""Which algorithm for which message: measurements, the cost model beside them, the table that
follows, and the files it becomes.
"""
