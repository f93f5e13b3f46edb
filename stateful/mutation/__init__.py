"""How good the checks are: small mistakes put into kvcore one by one, and how many of them are noticed.

python -m kvcore.stateful.mutation --sample 400 --seed 0
"""
