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
pkg_check_modules(HWY QUIET IMPORTED_TARGET libhwy>=1.0)
if(NOT TARGET PkgConfig::HWY)  # Ubuntu 22.04 has 0.16: tools/setup.sh fetches the source, which is compiled in
  find_path(HIGHWAY_SOURCE hwy/targets.cc PATHS $ENV{SATURATE_DEPS} $ENV{XDG_CACHE_HOME}/saturate
            $ENV{HOME}/.cache/saturate PATH_SUFFIXES highway)
  if(NOT HIGHWAY_SOURCE)
    message(FATAL_ERROR "Highway 1.0 or later not found. Run tools/setup.sh, or install libhwy-dev (Debian, Ubuntu) or "
                        "highway-devel (Fedora), or set HIGHWAY_SOURCE to the folder that has hwy/targets.cc")
  endif()
  add_library(PkgConfig::HWY INTERFACE IMPORTED)
  target_include_directories(PkgConfig::HWY INTERFACE ${HIGHWAY_SOURCE})
endif()
# Optional: without them such files are refused with a message.
pkg_check_modules(WEBP QUIET libwebp)
pkg_check_modules(AVIF QUIET libavif>=0.11)
