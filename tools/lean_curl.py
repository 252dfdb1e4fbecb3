"""Builds a libcurl of HTTP and TLS only, for wheels: the system's is linked with some thirty libraries.

The program loads it where the system has no libcurl 7.87 or later (src/store/curl_library.cpp). The source is the one
that Debian 13 builds from, with a fixed checksum. OpenSSL and nghttp2 are the system's, and travel in the wheel.
"""

import hashlib
import pathlib
import shutil
import subprocess
import sys
import tarfile
import tempfile
import urllib.request

NAME = "libsaturate_curl.so"
VERSION = "8.14.1"
URL = f"http://deb.debian.org/debian/pool/main/c/curl/curl_{VERSION}.orig.tar.gz"
SHA256 = "6766ada7101d292b42b8b15681120acd68effa4a9660935853cf6d61f0d984d4"
OFF = ["BUILD_CURL_EXE", "BUILD_LIBCURL_DOCS", "BUILD_MISC_DOCS", "BUILD_TESTING", "CURL_BROTLI", "CURL_CA_FALLBACK",
       "CURL_USE_LIBPSL", "CURL_USE_LIBSSH2", "CURL_ZLIB", "CURL_ZSTD", "ENABLE_CURL_MANUAL", "USE_LIBIDN2"]
ON = ["BUILD_SHARED_LIBS", "CURL_DISABLE_ALTSVC", "CURL_DISABLE_HSTS", "CURL_USE_OPENSSL", "HTTP_ONLY", "USE_NGHTTP2"]
SET = {"CMAKE_BUILD_TYPE": "Release", "CURL_CA_BUNDLE": "none", "CURL_CA_PATH": "none",
       "CMAKE_SHARED_LINKER_FLAGS": "-s"}


def run(*command):
    done = subprocess.run([str(part) for part in command], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
                          errors="replace", check=False)
    if done.returncode:
        sys.exit(f"wheels: libcurl {VERSION} could not be built:\n{done.stdout[-3000:]}")


def fetch(archive):
    try:
        with urllib.request.urlopen(URL, timeout=60) as reply:
            content = reply.read()
    except OSError as error:
        sys.exit(f"wheels: {URL} could not be fetched: {error}. Check the network, or put the file at {archive}")
    archive.parent.mkdir(parents=True, exist_ok=True)
    archive.write_bytes(content)


def make(build):
    """Returns the path of the library in the folder `build`, and that of its licence."""
    settings = SET | dict.fromkeys(OFF, "OFF") | dict.fromkeys(ON, "ON")
    folder = pathlib.Path(build) / f"curl-{VERSION}-{hashlib.sha256(repr(settings).encode()).hexdigest()[:8]}"
    library, licence = folder / NAME, folder / "curl.txt"
    if library.exists() and licence.exists():
        return library, licence
    archive = folder.parent / f"curl_{VERSION}.orig.tar.gz"
    if not archive.exists():
        fetch(archive)
    if hashlib.sha256(archive.read_bytes()).hexdigest() != SHA256:
        archive.unlink()
        sys.exit(f"wheels: {URL} came with another checksum than {SHA256}. Try again")
    with tempfile.TemporaryDirectory() as name:
        scratch = pathlib.Path(name)
        with tarfile.open(archive) as file:
            file.extractall(scratch)
        source, made = scratch / f"curl-{VERSION}", scratch / "made"
        run("cmake", "-S", source, "-B", made, "-G", "Ninja", *(f"-D{key}={value}" for key, value in settings.items()))
        run("cmake", "--build", made, "--target", "libcurl_shared")
        run("patchelf", "--set-soname", NAME, made / "lib/libcurl.so.4")
        folder.mkdir(exist_ok=True)
        shutil.copy(made / "lib/libcurl.so.4", library)
        shutil.copy(source / "COPYING", licence)
    return library, licence
