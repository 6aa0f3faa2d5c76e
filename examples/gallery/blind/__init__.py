"""Cases written by somebody who had not read the rules: what a first look at them gave is kept."""
