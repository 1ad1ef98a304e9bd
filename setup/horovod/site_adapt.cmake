# As adapt.cmake, with the C++ standard that the headers of this PyTorch need: older compilers lack later ones.
include("${CMAKE_CURRENT_LIST_DIR}/adapt.cmake")
# But C++20 with g++ 14 or later: in C++17, g++ 14 rejects the flatbuffers of Horovod (adapt.cmake).
if(NOT (CMAKE_CXX_COMPILER_ID STREQUAL "GNU" AND CMAKE_CXX_COMPILER_VERSION VERSION_GREATER_EQUAL 14))
  set(CMAKE_CXX11_STANDARD_COMPILE_OPTION "-std=c++$ENV{HVSCALE_BUILD_CXX_STANDARD}")
  set(CMAKE_CXX14_STANDARD_COMPILE_OPTION "-std=c++$ENV{HVSCALE_BUILD_CXX_STANDARD}")
endif()
