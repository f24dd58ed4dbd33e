#!/bin/bash
# Run SGLang on the CPU in the foreground: serve_sglang.sh VENV MODEL_DIR PORT [more arguments]
set -euo pipefail
venv=$1 model=$2 port=$3
shift 3
# No --tool-call-parser: a call that SGLang's cannot read is left out of the reply, which is then
# empty (89 of 100 trajectories ended so at temperature 1.4); ours tells the agent what is wrong.
# One thread: with one per core, each waits for the others at every step, and where the cores have
# other work too that took eight times as long (17 instead of 139 tokens/s of one request).
export OMP_NUM_THREADS=1
export HF_HUB_OFFLINE=1 SGLANG_RETURN_ORIGINAL_LOGPROB=${SGLANG_RETURN_ORIGINAL_LOGPROB-1}
exec "$venv/bin/python" -m sglang.launch_server --model-path "$model" \
	--dtype float32 --served-model-name tiny --host 127.0.0.1 --port "$port" --context-length 4096 \
	--device cpu --attention-backend torch_native --sampling-backend pytorch \
	--disable-overlap-schedule --disable-cuda-graph --enable-metrics --max-total-tokens 65536 \
	--mem-fraction-static 0.2 "$@"
