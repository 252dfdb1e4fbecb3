# LibTorch from the PyPI wheel, as the target saturate_torch. The wheel's own CMake package needs a CUDA toolkit even
# if nothing is compiled for CUDA. This file is installed with the library, so that programs that link it find LibTorch
# in the same way.

# The cache variable stays empty unless a user sets it, so that a LibTorch that has moved is found again.
set(SATURATE_TORCH_DIR "" CACHE PATH "The torch package folder, with include/ and lib/, if not found")
# An installed library accepts only the minor release that it was compiled with, which is written beside it.
if(EXISTS ${CMAKE_CURRENT_LIST_DIR}/torch_version)
  file(STRINGS ${CMAKE_CURRENT_LIST_DIR}/torch_version torch_version)
  string(REGEX MATCH "^[0-9]+\\.[0-9]+" wanted_torch ${torch_version})
else()
  set(torch_version_help "The version of LibTorch, such as 2.11.0, if not the one that tools/find_torch.sh finds first")
  set(SATURATE_TORCH_VERSION "$ENV{SATURATE_TORCH_VERSION}" CACHE STRING ${torch_version_help})
  if(NOT SATURATE_TORCH_VERSION)  # a folder that was configured without a choice takes a later one
    set(SATURATE_TORCH_VERSION "$ENV{SATURATE_TORCH_VERSION}" CACHE STRING ${torch_version_help} FORCE)
  endif()
  set(wanted_torch ${SATURATE_TORCH_VERSION})
endif()
find_program(find_torch_script find_torch.sh REQUIRED NO_CACHE NO_DEFAULT_PATH
             PATHS ${CMAKE_CURRENT_LIST_DIR}/../tools ${CMAKE_CURRENT_LIST_DIR})
set(find_torch ${CMAKE_COMMAND} -E env SATURATE_TORCH_VERSION=${wanted_torch})
if(SATURATE_TORCH_DIR)
  list(APPEND find_torch SATURATE_TORCH_DIR=${SATURATE_TORCH_DIR})
endif()
list(APPEND find_torch ${find_torch_script})
execute_process(COMMAND ${find_torch} OUTPUT_VARIABLE torch_dir OUTPUT_STRIP_TRAILING_WHITESPACE
                RESULT_VARIABLE result)
if(NOT result EQUAL 0)
  message(FATAL_ERROR "No LibTorch ${wanted_torch} found (2.11 to 2.15 are supported). Run tools/setup.sh of a "
                      "checkout, with SATURATE_TORCH_VERSION=2.11.0 for that version, or set SATURATE_TORCH_DIR")
endif()
execute_process(COMMAND ${find_torch} --of ${torch_dir} OUTPUT_VARIABLE torch_version
                OUTPUT_STRIP_TRAILING_WHITESPACE)
# Full: its GPU part can be loaded. A CPU set has libtorch_cuda.so too, but not the libraries that it needs.
execute_process(COMMAND ${find_torch} --full OUTPUT_VARIABLE full_dir
                OUTPUT_STRIP_TRAILING_WHITESPACE ERROR_QUIET)
set(SATURATE_TORCH_FULL OFF)
# With the fake CUDA runtime of tests/fake_cuda a CPU set is linked like a full one.
if(full_dir STREQUAL torch_dir OR SATURATE_FAKE_CUDA)
  set(SATURATE_TORCH_FULL ON)
endif()
message(STATUS "LibTorch ${torch_version}: ${torch_dir} (full: ${SATURATE_TORCH_FULL})")
set_property(DIRECTORY APPEND PROPERTY CMAKE_CONFIGURE_DEPENDS
             ${find_torch_script} ${torch_dir}/include/torch/headeronly/version.h)

get_filename_component(site_packages ${torch_dir} DIRECTORY)
set(cuda_lib ${site_packages}/nvidia/cu13/lib)
set_property(GLOBAL PROPERTY SATURATE_CUDA_LIB ${cuda_lib})  # for other folders of a project
add_library(saturate_torch INTERFACE)
# After the system's folders, because the wheel has headers of other libraries, such as fmt, in other versions than
# those linked here.
target_compile_options(saturate_torch INTERFACE
  "SHELL:-idirafter \"${torch_dir}/include\""
  "SHELL:-idirafter \"${torch_dir}/include/torch/csrc/api/include\"")
target_link_directories(saturate_torch INTERFACE ${torch_dir}/lib)
# A target with the property SATURATE_OWN_RPATH sets its own RUNPATH to the libraries.
target_link_options(saturate_torch INTERFACE
  $<$<NOT:$<BOOL:$<TARGET_PROPERTY:SATURATE_OWN_RPATH>>>:-Wl,-rpath,${torch_dir}/lib,-rpath,${cuda_lib}>
  -Wl,-rpath-link,${cuda_lib}
  # The wheel's libraries refer to GPU libraries that a CPU set lacks and that nothing here calls.
  -Wl,--allow-shlib-undefined)
# torch_cpu registers its operators in static constructors, so it is linked even if none of its symbols is used; so is
# torch_cuda if it can be loaded.
set(torch_libraries torch_cpu c10)
if(SATURATE_TORCH_FULL AND NOT SATURATE_CUDA STREQUAL "OFF")
  list(APPEND torch_libraries torch_cuda c10_cuda)
endif()
target_link_libraries(saturate_torch INTERFACE -Wl,--push-state,--no-as-needed ${torch_libraries}
                      -Wl,--pop-state)
