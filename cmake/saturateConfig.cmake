# find_package(saturate)                    saturate::saturate and saturate::data
# find_package(saturate COMPONENTS data)    only saturate::data, which needs no LibTorch
include(${CMAKE_CURRENT_LIST_DIR}/Dependencies.cmake)
include(${CMAKE_CURRENT_LIST_DIR}/saturateDataTargets.cmake)
set(saturate_data_FOUND TRUE)

set(saturate_torch_FOUND FALSE)
if(NOT saturate_FIND_COMPONENTS OR "torch" IN_LIST saturate_FIND_COMPONENTS)
  if(EXISTS ${CMAKE_CURRENT_LIST_DIR}/saturateTorchTargets.cmake)
    if(NOT TARGET saturate::torch)
      include(${CMAKE_CURRENT_LIST_DIR}/Torch.cmake)
      add_library(saturate::torch ALIAS saturate_torch)
    endif()
    include(${CMAKE_CURRENT_LIST_DIR}/Sinks.cmake)
    include(${CMAKE_CURRENT_LIST_DIR}/saturateTorchTargets.cmake)
    if(TARGET saturate::saturate_kernels)  # nvcc would link the CUDA runtime, but a C++ project has none
      file(GLOB cudart ${cuda_lib}/libcudart.so.*)
      target_link_libraries(saturate::saturate_kernels INTERFACE ${cudart})
    endif()
    set(saturate_torch_FOUND TRUE)
  endif()
endif()

foreach(component IN LISTS saturate_FIND_COMPONENTS)
  if(saturate_FIND_REQUIRED_${component} AND NOT saturate_${component}_FOUND)
    set(saturate_FOUND FALSE)
    set(saturate_NOT_FOUND_MESSAGE "this installation of saturate has no component ${component}")
  endif()
endforeach()
