"""Question data sets: official formats, the generated encyclopedia, and what finds them by name."""
