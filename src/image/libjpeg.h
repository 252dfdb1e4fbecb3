// jpeglib.h, which needs two headers before it, and jpegint.h, which needs jpeglib.h.
#pragma once

// clang-format off
#include <cstddef>
#include <cstdio>
#include <jpeglib.h>
#include <jpegint.h>
// clang-format on
