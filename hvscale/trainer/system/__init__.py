"""What the trainer sets on the machine, in the process and in the model so that it runs fast and
fails cleanly.
"""
