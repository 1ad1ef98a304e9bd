# As adapt.cmake, with the C++ standard that the headers of this PyTorch need: older compilers lack later ones.
include("${CMAKE_CURRENT_LIST_DIR}/adapt.cmake")
set(CMAKE_CXX11_STANDARD_COMPILE_OPTION "-std=c++$ENV{HVSCALE_BUILD_CXX_STANDARD}")
set(CMAKE_CXX14_STANDARD_COMPILE_OPTION "-std=c++$ENV{HVSCALE_BUILD_CXX_STANDARD}")
