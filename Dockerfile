# The pipeline with a Java runtime. Everything comes from the package registries of Debian and PyPI.
#   docker build -t nevermore .
#   docker run --rm -v "$PWD:/project" nevermore ingest
FROM python:3.12-slim-bookworm AS build
COPY . /source
RUN pip wheel --no-cache-dir --no-deps --wheel-dir /wheels /source

FROM python:3.12-slim-bookworm
RUN apt-get update \
    && apt-get install -y --no-install-recommends openjdk-17-jre-headless \
    && rm -rf /var/lib/apt/lists/* \
    && useradd --create-home nevermore
COPY --from=build /wheels /wheels
COPY constraints.txt /wheels/
RUN pip install --no-cache-dir --constraint /wheels/constraints.txt "$(echo /wheels/*.whl)[all]"
USER nevermore
RUN python -m pipelines.cli.compile_kernels
WORKDIR /project
ENTRYPOINT ["nevermore"]
CMD ["run", "--listen", "0.0.0.0:9464"]
