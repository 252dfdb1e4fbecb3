# How to compile: warnings, sanitizers, ccache and the linker.

find_program(CCACHE ccache)
if(CCACHE)
  # Without the checkout's path, so that all checkouts share the objects of one.
  set(CMAKE_CXX_COMPILER_LAUNCHER ${CMAKE_COMMAND} -E env CCACHE_BASEDIR=${PROJECT_SOURCE_DIR}
      CCACHE_NOHASHDIR=1 ${CCACHE})
  set(CMAKE_CUDA_COMPILER_LAUNCHER ${CMAKE_CXX_COMPILER_LAUNCHER})
endif()

# Unity builds (CMAKE_UNITY_BUILD): a source's compile time is mostly spent on torch's headers, so a target's sources
# are combined into `count` units, which takes a third of the time. A source's name alone determines its unit, so a new
# file changes one unit. Names in anonymous namespaces must differ within a unit. A third argument is the count with
# SATURATE_QUICK: without optimization torch's headers take longer than the sources, so fewer units take less time.
function(deal_out target count)
  if(SATURATE_QUICK AND ARGC GREATER 2)
    set(count ${ARGV2})
  endif()
  get_target_property(sources ${target} SOURCES)
  foreach(source IN LISTS sources)
    get_filename_component(name ${source} NAME)
    string(MD5 hash ${name})
    string(SUBSTRING ${hash} 0 6 digits)
    math(EXPR unit "0x${digits} % ${count}")
    set_property(SOURCE ${source} PROPERTY UNITY_GROUP unit_${unit})
  endforeach()
  set_target_properties(${target} PROPERTIES UNITY_BUILD_MODE GROUP)
endfunction()

# Within a unit, names of one source would shadow those of another.
set(unity_flags $<$<CXX_COMPILER_ID:GNU>:-Wno-subobject-linkage>)
if(NOT CMAKE_UNITY_BUILD)
  set(unity_flags -Wshadow)
endif()

# From GCC 13 on, any reference that a function with a temporary argument returns is warned of.
set(gnu_flags)
if(CMAKE_CXX_COMPILER_ID STREQUAL "GNU" AND CMAKE_CXX_COMPILER_VERSION VERSION_GREATER_EQUAL 13)
  set(gnu_flags -Wno-dangling-reference)
endif()

add_library(saturate_flags INTERFACE)
target_compile_options(saturate_flags INTERFACE
  $<$<COMPILE_LANGUAGE:CXX>:-Wall;-Wextra;${gnu_flags};${unity_flags};-Wnon-virtual-dtor;-Woverloaded-virtual>
  $<$<AND:$<COMPILE_LANGUAGE:CXX>,$<BOOL:${SATURATE_WERROR}>>:-Werror>)

find_program(MOLD mold)
if(MOLD)
  include(CheckLinkerFlag)
  check_linker_flag(CXX -fuse-ld=mold HAS_MOLD)  # g++ 11 does not have it
  if(HAS_MOLD)
    add_link_options(-fuse-ld=mold)
  endif()
endif()

set(cold_optimization -O1)
if(SATURATE_SANITIZE)
  if(CMAKE_BUILD_TYPE STREQUAL "Release")
    add_compile_options(-O1 -g1)
  endif()
  find_program(CLANG clang++-16)
  set(clang_links FALSE)
  if(CLANG AND CMAKE_CXX_COMPILER_ID STREQUAL "GNU")
    file(WRITE ${PROJECT_BINARY_DIR}/clang_links.cpp "int main() {}")
    execute_process(COMMAND ${CLANG} -fsanitize=${SATURATE_SANITIZE} clang_links.cpp -o clang_links
                    WORKING_DIRECTORY ${PROJECT_BINARY_DIR} RESULT_VARIABLE result OUTPUT_QUIET ERROR_QUIET)
    string(COMPARE EQUAL "${result}" 0 clang_links)
  endif()
  if(clang_links)
    list(PREPEND CMAKE_CXX_COMPILER_LAUNCHER ${PROJECT_SOURCE_DIR}/tools/clang_if_sanitized)
    set(CMAKE_CXX_LINKER_LAUNCHER ${PROJECT_SOURCE_DIR}/tools/clang_if_sanitized)
    set(cold_optimization -O0)  # for modules with torch: GCC gains little by it, Clang half the time
  endif()
  if(CMAKE_CXX_COMPILER_ID STREQUAL "GNU")
    # With the checks GCC no longer sees all initialisations, and warns about its own library's regex.
    add_compile_options(-Wno-maybe-uninitialized)
  endif()
  add_compile_options(-fsanitize=${SATURATE_SANITIZE} -fno-omit-frame-pointer
                      -fno-sanitize-recover=all)
  # Not compile definitions, which the tests' own sources would have too (tests/CMakeLists.txt).
  if(SATURATE_SANITIZE MATCHES "address")
    add_compile_options(-DSATURATE_ASAN=1)
  elseif(SATURATE_SANITIZE MATCHES "thread")
    add_compile_options(-DSATURATE_TSAN=1)
  endif()
  add_link_options(-fsanitize=${SATURATE_SANITIZE})
endif()
