# Two images of one file: `server` (the default) and `client`, which has the light package alone. docs/containers.md
ARG PYTHON=3.11.14-slim-bookworm

FROM python:${PYTHON} AS build
# PyPI's own torch brings gigabytes of CUDA libraries.
ARG TORCH_INDEX=https://download.pytorch.org/whl/cpu
ARG TORCH=2.13.0
ENV PIP_NO_CACHE_DIR=1 PIP_DISABLE_PIP_VERSION_CHECK=1
RUN python -m venv /opt/rtcontrol && \
    /opt/rtcontrol/bin/pip install --extra-index-url "${TORCH_INDEX}" "torch==${TORCH}"
WORKDIR /source
COPY pyproject.toml README.md LICENSE ./
COPY bridges bridges
COPY agents agents
COPY envs envs
COPY models models
COPY rtcontrol rtcontrol
# Such as [ray-serve].
ARG EXTRAS=
RUN /opt/rtcontrol/bin/pip install --extra-index-url "${TORCH_INDEX}" "torch==${TORCH}" ./bridges ".${EXTRAS}"

FROM python:${PYTHON} AS light
ENV PIP_NO_CACHE_DIR=1 PIP_DISABLE_PIP_VERSION_CHECK=1
WORKDIR /source
COPY bridges bridges
RUN python -m venv /opt/client && /opt/client/bin/pip install ./bridges

FROM python:${PYTHON} AS base
# A new volume takes owner and mode of the folder that it is mounted on.
RUN groupadd --gid 10001 rtcontrol && useradd --uid 10001 --gid 10001 --no-create-home --home-dir /data rtcontrol && \
    install --directory --owner 10001 --group 10001 --mode 0700 /data /keys /robot
ENV PYTHONUNBUFFERED=1 PYTHONDONTWRITEBYTECODE=1 HOME=/data

FROM base AS client
COPY --from=light /opt/client /opt/client
COPY examples/robot.py /opt/client/robot.py
ENV PATH=/opt/client/bin:${PATH}
USER 10001:10001
WORKDIR /robot
STOPSIGNAL SIGTERM
ENTRYPOINT ["python"]
CMD ["/opt/client/robot.py", "tcp://server:5555", "/robot/robot.key_secret"]

FROM base AS server
COPY --from=build /opt/rtcontrol /opt/rtcontrol
COPY examples /pages
ENV PATH=/opt/rtcontrol/bin:${PATH}
USER 10001:10001
WORKDIR /data
VOLUME ["/data"]
EXPOSE 8080
STOPSIGNAL SIGTERM
HEALTHCHECK --interval=10s --timeout=5s --start-period=90s --retries=3 CMD ["python", "-c", "from pathlib import Path; from urllib.request import Request, urlopen; urlopen(Request('http://127.0.0.1:8080/health', headers={'authorization': 'Bearer ' + Path('/data/token').read_text().strip()}), timeout=4)"]
ENTRYPOINT ["rtcontrol"]
CMD ["serve", "--host", "inprocess", "--http", "0.0.0.0:8080", "--set", "serve.token_file=/data/token", "--set", "serve.require_token=true", "--set", "serve.static=/pages"]
