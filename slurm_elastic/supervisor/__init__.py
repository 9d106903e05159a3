"""ACTS: turns what happens into facts for the machine, and the machine's orders into deeds. One process per run."""
