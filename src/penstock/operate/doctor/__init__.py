"""What `penstock doctor` looks at; every module looks at one thing, and none changes anything."""
