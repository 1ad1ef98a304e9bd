# As toolchain.cmake, for a site's PyTorch.
include("${CMAKE_CURRENT_LIST_DIR}/toolchain.cmake")
set(CMAKE_PROJECT_INCLUDE "${CMAKE_CURRENT_LIST_DIR}/site_adapt.cmake")
