# Warnings, sanitizers, ccache and the linker: everything that says how, not what, to compile.

find_program(CCACHE ccache)
if(CCACHE)
  # Without the checkout's own path, so that all checkouts share what one has compiled.
  set(CMAKE_CXX_COMPILER_LAUNCHER ${CMAKE_COMMAND} -E env CCACHE_BASEDIR=${PROJECT_SOURCE_DIR}
      CCACHE_NOHASHDIR=1 ${CCACHE})
  set(CMAKE_CUDA_COMPILER_LAUNCHER ${CMAKE_CXX_COMPILER_LAUNCHER})
endif()

add_library(saturate_flags INTERFACE)
target_compile_options(saturate_flags INTERFACE
  $<$<COMPILE_LANGUAGE:CXX>:-Wall;-Wextra;-Wshadow;-Wnon-virtual-dtor;-Woverloaded-virtual>
  $<$<AND:$<COMPILE_LANGUAGE:CXX>,$<BOOL:${SATURATE_WERROR}>>:-Werror>)

find_program(MOLD mold)
if(MOLD)
  add_link_options(-fuse-ld=mold)
endif()

if(SATURATE_SANITIZE)
  add_compile_options(-fsanitize=${SATURATE_SANITIZE} -fno-omit-frame-pointer
                      -fno-sanitize-recover=all)
  if(CMAKE_CXX_COMPILER_ID STREQUAL "GNU")
    # The checks hide from GCC what is initialised where: it warns of its own library's regex.
    add_compile_options(-Wno-maybe-uninitialized)
  endif()
  add_link_options(-fsanitize=${SATURATE_SANITIZE})
endif()
