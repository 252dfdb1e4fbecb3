# Decides SATURATE_HAS_CUDA, and builds saturate_kernels from the project's own CUDA kernels.
# ON needs only nvcc 13, so that a machine without a GPU can compile and link them. AUTO is ON if
# LibTorch is full too, and OFF otherwise.
set(SATURATE_HAS_CUDA OFF)
if(SATURATE_CUDA STREQUAL "OFF" OR (SATURATE_CUDA STREQUAL "AUTO" AND NOT SATURATE_TORCH_FULL))
  return()
endif()

if(CMAKE_VERSION VERSION_LESS 3.24)  # has no $<LINK_LIBRARY:WHOLE_ARCHIVE>
  if(SATURATE_CUDA STREQUAL "ON")
    message(FATAL_ERROR "CUDA kernels need CMake 3.24 (this is ${CMAKE_VERSION}). Run pip install cmake, or configure "
                        "with SATURATE_CUDA=OFF")
  endif()
  say_once(cuda "saturate: CUDA kernels are left out: CMake ${CMAKE_VERSION} is older than 3.24. Run pip install cmake")
  return()
endif()
find_program(SATURATE_NVCC nvcc HINTS $ENV{CUDACXX} PATHS $ENV{CUDA_HOME}/bin /usr/local/cuda/bin)
set(nvcc_version 0)
if(SATURATE_NVCC)
  execute_process(COMMAND ${SATURATE_NVCC} --version OUTPUT_VARIABLE nvcc_says)
  string(REGEX MATCH "release ([0-9.]+)" ignored "${nvcc_says}")
  set(nvcc_version ${CMAKE_MATCH_1})
endif()
# LibTorch's wheel carries the CUDA 13 runtime, and one process holds one runtime.
if(nvcc_version VERSION_LESS 13)
  if(SATURATE_CUDA STREQUAL "ON")
    message(FATAL_ERROR "nvcc 13 is needed (found: ${SATURATE_NVCC} ${nvcc_version}). "
                        "Put it on PATH, or set CUDACXX, or configure with SATURATE_CUDA=OFF")
  endif()
  say_once(cuda "saturate: CUDA kernels are left out: nvcc 13 is missing. Put it on PATH, or set CUDACXX")
  return()
endif()

set(CMAKE_CUDA_COMPILER ${SATURATE_NVCC})
set(CMAKE_CUDA_HOST_COMPILER ${CMAKE_CXX_COMPILER})
# Machine code for sm_75 to sm_120, and PTX of sm_90 for all others. To run PTX, a driver must be as new as this nvcc.
set(CMAKE_CUDA_ARCHITECTURES 75-real 80-real 90 100-real 120-real)
set(CMAKE_CUDA_RUNTIME_LIBRARY Shared)
enable_language(CUDA)
# Settings for nvcc that CMake before 3.25.2 lacks.
set(CMAKE_CUDA20_STANDARD_COMPILE_OPTION -std=c++20)
set(CMAKE_CUDA20_EXTENSION_COMPILE_OPTION -std=c++20)
set(SATURATE_HAS_CUDA ON)
message(STATUS "CUDA kernels: ${SATURATE_NVCC} ${nvcc_version}")

file(GLOB kernel_sources CONFIGURE_DEPENDS src/*/*.cu)
add_library(saturate_kernels STATIC ${kernel_sources})
target_include_directories(saturate_kernels PRIVATE src)
target_link_libraries(saturate_kernels PUBLIC saturate_data)
# Without fused multiply-add, as on the CPU: an effect computes the same levels on both.
target_compile_options(saturate_kernels PRIVATE -fmad=false -Xcompiler=-Wall,-Wextra
                       $<$<BOOL:${SATURATE_WERROR}>:-Werror=all-warnings>)
