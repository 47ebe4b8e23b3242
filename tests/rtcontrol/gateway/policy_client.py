"""A client of policy servers by openpi-client's own code, run by an interpreter that has it; says what it was answered.

python policy_client.py PORT QUESTIONS KEY [PAUSE_S]
"""

import json
import sys
import time

import numpy as np
from openpi_client.websocket_client_policy import WebsocketClientPolicy

port, questions, key = int(sys.argv[1]), int(sys.argv[2]), sys.argv[3] or None
policy = WebsocketClientPolicy("127.0.0.1", port, api_key=key)
answers = []
for i in range(questions):
    state = np.array([50.0, 30.0, 45.0, 0.0, float(5 + i % 50), 30.0], np.float32)
    answer = policy.infer({"observation/state": state, "prompt": "return every ball", "observation/image": state})
    shape, kind = answer["actions"].shape, answer["actions"].dtype.kind
    answers.append({"shape": shape, "kind": kind, "action": float(answer["actions"][0, 0]), "status": answer["status"]})
    time.sleep(float(sys.argv[4]) if len(sys.argv) > 4 else 0.0)
print(json.dumps({"metadata": policy.get_server_metadata(), "answers": answers}))
