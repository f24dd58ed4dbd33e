# Atropos' API server alone: its package asks for 104 others, which only its environments need.
FROM python:3.13-slim-bookworm
RUN pip install --no-cache-dir 'fastapi>=0.115,<1' 'pydantic>=2,<3' 'uvicorn>=0.30,<1' \
    && pip install --no-cache-dir --no-deps atroposlib==0.4.0 \
    && useradd --uid 10001 --create-home atropos
USER 10001:10001
WORKDIR /home/atropos
CMD ["run-api", "--host", "0.0.0.0", "--port", "8000"]
