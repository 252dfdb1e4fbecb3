# Dependencies of the torch-free library; installed with it, for programs that link it.
find_package(Threads REQUIRED)
find_package(PkgConfig REQUIRED)
find_package(PNG REQUIRED)
find_package(ZLIB REQUIRED)
find_package(fmt REQUIRED)
find_package(tomlplusplus QUIET)
if(NOT TARGET tomlplusplus::tomlplusplus)  # Ubuntu 22.04 has none: tools/setup.sh fetches its headers
  find_path(TOMLPLUSPLUS_INCLUDE toml++/toml.h PATHS $ENV{SATURATE_DEPS} $ENV{XDG_CACHE_HOME}/saturate
            $ENV{HOME}/.cache/saturate PATH_SUFFIXES tomlplusplus/include)
  if(NOT TOMLPLUSPLUS_INCLUDE)
    message(FATAL_ERROR "toml++ not found. Run tools/setup.sh, or install libtomlplusplus-dev (Debian, Ubuntu) or "
                        "tomlplusplus-devel (Fedora), or set TOMLPLUSPLUS_INCLUDE to the folder that has toml++/toml.h")
  endif()
  add_library(tomlplusplus::tomlplusplus INTERFACE IMPORTED)
  target_include_directories(tomlplusplus::tomlplusplus INTERFACE ${TOMLPLUSPLUS_INCLUDE})
endif()
pkg_check_modules(JPEG REQUIRED IMPORTED_TARGET libjpeg)
pkg_check_modules(LMDB REQUIRED IMPORTED_TARGET lmdb)
pkg_check_modules(DEFLATE REQUIRED IMPORTED_TARGET libdeflate)
pkg_check_modules(HWY REQUIRED IMPORTED_TARGET libhwy)
# Optional: without them such files are refused with a message.
pkg_check_modules(WEBP QUIET libwebp)
pkg_check_modules(AVIF QUIET libavif)
