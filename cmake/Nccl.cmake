# SATURATE_NCCL_INCLUDE: where nccl.h is, that of LibTorch's wheel before a system's, whose ncclConfig_t may be
# another than the one in torch's own structures.
find_path(SATURATE_NCCL_INCLUDE nccl.h HINTS ${site_packages}/nvidia/nccl/include
          PATHS ${CMAKE_CUDA_TOOLKIT_INCLUDE_DIRECTORIES})
if(CMAKE_SCRIPT_MODE_FILE)
  message(STATUS ${SATURATE_NCCL_INCLUDE})
endif()
