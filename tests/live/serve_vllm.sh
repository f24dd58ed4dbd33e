#!/bin/bash
# Run vLLM on the CPU in the foreground: serve_vllm.sh VENV MODEL_DIR PORT [more arguments]
set -euo pipefail
venv=$1 model=$2 port=$3
shift 3
export VLLM_CPU_KVCACHE_SPACE=1 VLLM_NO_USAGE_STATS=1 DO_NOT_TRACK=1 HF_HUB_OFFLINE=1
# The module, since `vllm serve` asks for the distribution "vllm" and this one is "vllm-cpu".
# As many batched tokens as never split a prompt: a chunked prefill together with a request's
# own seed ends the CPU engine of 0.32.0 ("CPU Generator does not use offset").
# float32: in bfloat16 rescoring at temperature 1.4 differed by up to 0.06.
exec "$venv/bin/python" -m vllm.entrypoints.openai.api_server --model "$model" \
	--dtype float32 --served-model-name tiny --host 127.0.0.1 --port "$port" --max-model-len 4096 \
	--max-num-seqs 64 --max-num-batched-tokens 262144 --enforce-eager \
	--enable-auto-tool-choice --tool-call-parser hermes "$@"
