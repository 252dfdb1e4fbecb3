# Dependencies of the torch-free library; installed with it, for programs that link it.
find_package(Threads REQUIRED)
find_package(PkgConfig REQUIRED)
find_package(PNG REQUIRED)
find_package(ZLIB REQUIRED)
find_package(fmt REQUIRED)

# Makes a target of the headers that tools/setup.sh has fetched on Ubuntu 22.04, whose packages lack them or are too old:
# VARIABLE is the folder, found by FILE, one that it has.
function(find_fetched TARGET VARIABLE FILE FOLDER NAME DEBIAN FEDORA)
  if(TARGET ${TARGET})
    return()
  endif()
  find_path(${VARIABLE} ${FILE} PATHS $ENV{SATURATE_DEPS} $ENV{XDG_CACHE_HOME}/saturate $ENV{HOME}/.cache/saturate
            PATH_SUFFIXES ${FOLDER})
  if(NOT ${VARIABLE})
    message(FATAL_ERROR "${NAME} not found. Run tools/setup.sh, or install ${DEBIAN} (Debian, Ubuntu) or ${FEDORA} "
                        "(Fedora), or set ${VARIABLE} to the folder that has ${FILE}")
  endif()
  add_library(${TARGET} INTERFACE IMPORTED GLOBAL)
  target_include_directories(${TARGET} INTERFACE ${${VARIABLE}})
endfunction()

find_package(tomlplusplus QUIET)
find_fetched(tomlplusplus::tomlplusplus TOMLPLUSPLUS_INCLUDE toml++/toml.h tomlplusplus/include toml++ libtomlplusplus-dev
             tomlplusplus-devel)
pkg_check_modules(JPEG REQUIRED IMPORTED_TARGET libjpeg)
pkg_check_modules(LMDB REQUIRED IMPORTED_TARGET lmdb)
pkg_check_modules(DEFLATE REQUIRED IMPORTED_TARGET libdeflate)
pkg_check_modules(HWY QUIET IMPORTED_TARGET libhwy>=1.0)
find_fetched(PkgConfig::HWY HIGHWAY_SOURCE hwy/targets.cc highway "Highway 1.0 or later" libhwy-dev highway-devel)
# Optional: without them such files are refused with a message.
pkg_check_modules(WEBP QUIET libwebp)
pkg_check_modules(AVIF QUIET libavif>=0.11)
