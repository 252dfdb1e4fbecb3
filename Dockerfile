# The command in an image, without the GPU's part. The source tree stays read-only; needs BuildKit.
#   mkdir -p runs && docker build -t saturate . && docker run --rm --user "$(id -u):$(id -g)" \
#     -v "$PWD/photos:/photos:ro" -v "$PWD/runs:/home/saturate/runs" saturate train /photos --out runs/photos
FROM debian:12
RUN --mount=type=bind,target=/src --mount=type=tmpfs,target=/build \
    export SATURATE_DEPS=/opt/deps && /src/tools/setup.sh --cpu && \
    cmake -S /src -B /build -G Ninja -DCMAKE_BUILD_TYPE=Release -DCMAKE_UNITY_BUILD=ON -DSATURATE_TESTS=OFF && \
    jobs=$({ nproc; awk '/MemAvailable/ { print 1 + int($2 / 2097152) }' /proc/meminfo; } | sort -n | head -n 1) && \
    cmake --build /build -j "$jobs" --target saturate_command && cmake --install /build --prefix /usr/local && \
    rm -rf /opt/deps /var/lib/apt/lists/* && useradd --create-home saturate
USER saturate
WORKDIR /home/saturate
ENTRYPOINT ["saturate"]
