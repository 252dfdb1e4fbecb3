# Dependencies of a run's outputs in other programs' formats: ISA-L's CRC-32C and Protozero for TensorBoard (the latter
# is header-only), cpp-httplib for Prometheus. Installed with the library that links them.
find_package(PkgConfig REQUIRED)
pkg_check_modules(ISAL REQUIRED IMPORTED_TARGET libisal)
pkg_check_modules(HTTPLIB REQUIRED IMPORTED_TARGET cpp-httplib)
