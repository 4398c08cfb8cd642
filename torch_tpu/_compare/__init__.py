"""`torch-tpu compare`: one script on several devices, each in a process of its own. `runner.py` is
what runs there; `measure.py` starts it; `report.py` and `html.py` show what came back."""
