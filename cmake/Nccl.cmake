# SATURATE_NCCL_INCLUDE: the folder of nccl.h. The one in LibTorch's wheel comes first: a system's ncclConfig_t may
# differ from the one in torch's structures.
find_path(SATURATE_NCCL_INCLUDE nccl.h HINTS ${site_packages}/nvidia/nccl/include
          PATHS ${CMAKE_CUDA_TOOLKIT_INCLUDE_DIRECTORIES})
if(CMAKE_SCRIPT_MODE_FILE)
  message(STATUS ${SATURATE_NCCL_INCLUDE})
endif()
