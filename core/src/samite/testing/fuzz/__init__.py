"""Random programs on random meshes, against one device: `python -m samite.testing.fuzz --programs 10000`.

A program is drawn op by op (`families`), each run at once on real tensors, so that the next op knows what there is. It
is text: what fails is printed as a script that runs by itself, made as small as hypothesis can make it.
"""
