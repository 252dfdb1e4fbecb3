# Dependencies of the torch-free library; installed with it, for programs that link it.
find_package(Threads REQUIRED)
find_package(PkgConfig REQUIRED)
find_package(PNG REQUIRED)
find_package(ZLIB REQUIRED)
find_package(fmt REQUIRED)
find_package(tomlplusplus REQUIRED)
pkg_check_modules(JPEG REQUIRED IMPORTED_TARGET libjpeg)
pkg_check_modules(LMDB REQUIRED IMPORTED_TARGET lmdb)
pkg_check_modules(DEFLATE REQUIRED IMPORTED_TARGET libdeflate)
pkg_check_modules(HWY REQUIRED IMPORTED_TARGET libhwy)
# Optional: without them such files are refused with a message.
pkg_check_modules(WEBP QUIET libwebp)
pkg_check_modules(AVIF QUIET libavif)
