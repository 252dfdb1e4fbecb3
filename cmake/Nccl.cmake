# nccl_include: the folder of nccl.h, of the same release as LibTorch's NCCL, or empty. torch's structures contain
# ncclConfig_t, which grows with releases. The header in LibTorch's wheel comes first; `tools/setup.sh --nccl` adds it
# to a CPU set.
include(${CMAKE_CURRENT_LIST_DIR}/Messages.cmake)
find_path(nccl_include nccl.h NO_CACHE HINTS ${site_packages}/nvidia/nccl/include
          PATHS ${CMAKE_CUDA_TOOLKIT_INCLUDE_DIRECTORIES})
string(REGEX REPLACE "/+$" "" nccl_include "${nccl_include}")
file(GLOB torch_metadata ${site_packages}/torch-*.dist-info/METADATA)
if(nccl_include AND torch_metadata)
  list(GET torch_metadata 0 torch_metadata)
  file(STRINGS ${torch_metadata} wanted_nccl REGEX "^Requires-Dist: nvidia-nccl-cu[0-9]+==")
  string(REGEX REPLACE ".*==([0-9]+\\.[0-9]+).*" "\\1" wanted_nccl "${wanted_nccl}")
  file(STRINGS ${nccl_include}/nccl.h has_nccl REGEX "^#define NCCL_(MAJOR|MINOR) ")
  string(REGEX REPLACE "[^0-9;]" "" has_nccl "${has_nccl}")
  list(JOIN has_nccl "." has_nccl)
  if(wanted_nccl AND NOT has_nccl STREQUAL wanted_nccl)
    string(CONCAT text "saturate: NCCL is left out: ${nccl_include}/nccl.h is ${has_nccl}, not LibTorch's "
                       "${wanted_nccl}. Run tools/setup.sh --nccl")
    say_once(nccl "${text}")
    set(nccl_include "")
  endif()
endif()
if(CMAKE_SCRIPT_MODE_FILE)
  message(STATUS "${nccl_include}")
endif()
