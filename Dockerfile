# The pipeline with a Java runtime. All packages come from the registries of Debian and PyPI.
#   docker build -t nevermore .
#   docker run --rm -v "$PWD:/project" nevermore ingest
# The base may be any image of Debian 13, also one made on the spot from Debian's packages:
#   mmdebstrap --variant=minbase --include=ca-certificates trixie - | docker import - debian:trixie-slim
ARG BASE=debian:trixie-slim
FROM ${BASE} AS python
RUN apt-get update \
    && apt-get install -y --no-install-recommends openjdk-21-jre-headless procps python3-venv \
    && rm -rf /var/lib/apt/lists/* \
    && useradd --create-home --uid 1000 nevermore \
    && python3 -m venv /opt/nevermore
ENV PATH=/opt/nevermore/bin:$PATH

FROM python AS build
COPY . /source
RUN pip wheel --no-cache-dir --no-deps --wheel-dir /wheels /source

FROM python
COPY --from=build /wheels /wheels
COPY constraints.txt /wheels/
RUN pip install --no-cache-dir --constraint /wheels/constraints.txt "$(echo /wheels/*.whl)[all]"
USER nevermore
RUN python -m nevermore.pipelines.cli.compile_kernels
WORKDIR /project
ENTRYPOINT ["nevermore"]
CMD ["run", "--listen", "0.0.0.0:9464"]
