"""What a step is: transitions, their decays and rank-one parts, steps and chunks as affine maps, the dense oracle."""
