"""Groups from the results stream into a trainer's steps. Importing a module loads no trainer.

areal.py         a rollout workflow of AReaL
feed.py          takes groups, and acknowledges them at the checkpoint
journal.py       which groups are in the weights of which step
mix.py           groups of several runs or envs by weight
prime_rl.py      prime-rl, in the place of its orchestrator
rows.py          token sequences with advantages, checked
skyrl.py         SkyRL's generator and trainers
slime.py         slime's rollout function, data source and rewards
tinker.py        a training loop for Tinker's SDK and the servers of its protocol
trl_async.py     TRL's AsyncGRPOTrainer
trl_callback.py  what the adapters of TRL share
trl_rollout.py   TRL's GRPOTrainer
verl.py          verl's V1 trainers
versions.py      versions of trainers that the adapters were tested with
sources/         what feeds are made of, and other sources of groups
"""
