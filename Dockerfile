# llmq from these sources, with a shell and what Kubernetes' files in deploy/ use. Of a release without a shell, of the
# program and the C library alone: packaging/docker/Dockerfile.
#   docker build -t llmq .                          # docker run --rm llmq run demo 'Once upon a time'
#   docker build -t llmq-mpi --target mpi .         # with Open MPI and sshd, for the MPI Operator
#   docker run -p 8000:8000 -v $PWD:/models:ro llmq serve /models/model.llmq --host 0.0.0.0 --api-key KEY
FROM debian:12-slim AS build
WORKDIR /src
COPY scripts/install-deps.sh scripts/
RUN sh scripts/install-deps.sh && rm -rf /var/lib/apt/lists/*
COPY . .
RUN make -s -j"$(nproc)" NVCC= && strip llmq && ./llmq version

FROM debian:12-slim AS program
RUN apt-get update && apt-get install -y --no-install-recommends ca-certificates libcjson1 libcurl4 libedit2 libgnutls30 \
        liblapacke libmicrohttpd12 libnettle8 libopenblas0-pthread libpcre2-8-0 libutf8proc2 libxxhash0 && \
    rm -rf /var/lib/apt/lists/* && \
    useradd --uid 10001 --create-home llmq
COPY --from=build /src/llmq /usr/local/bin/
COPY LICENSE NOTICE /usr/local/share/doc/llmq/
USER 10001
WORKDIR /home/llmq
EXPOSE 8000
ENTRYPOINT ["llmq"]

# The operator mounts keys into ~/.ssh and starts sshd as this user; hosts are pods of one job, new each time.
FROM program AS mpi
USER 0
RUN apt-get update && apt-get install -y --no-install-recommends libopenmpi3 openmpi-bin openssh-client openssh-server && \
    rm -rf /var/lib/apt/lists/* /etc/ssh/ssh_host_* && \
    useradd --uid 1000 --create-home mpiuser && \
    printf 'Host *\n    StrictHostKeyChecking no\n    UserKnownHostsFile /dev/null\n    LogLevel ERROR\n    Port 2222\n' \
        >/etc/ssh/ssh_config.d/llmq.conf && \
    printf 'Port 2222\nPidFile /home/mpiuser/sshd.pid\nHostKey /home/mpiuser/.ssh/id_rsa\nStrictModes no\n' \
        >/home/mpiuser/.sshd_config
USER 1000
WORKDIR /home/mpiuser
ENTRYPOINT []

# For KubeRay (deploy/kubernetes/rayservice.yaml), whose probes use wget.
FROM program AS ray
USER 0
RUN apt-get update && apt-get install -y --no-install-recommends python3-venv wget && rm -rf /var/lib/apt/lists/* && \
    python3 -m venv /opt/ray && /opt/ray/bin/pip install --no-cache-dir "ray[serve]==2.60.0"
COPY deploy/ray/llmq_serve.py deploy/ray/llmq_routing.py /opt/llmq/
ENV PATH=/opt/ray/bin:$PATH PYTHONPATH=/opt/llmq RAY_USAGE_STATS_ENABLED=0
USER 10001
ENTRYPOINT []

FROM program
