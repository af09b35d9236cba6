"""Section 3 of the paper: losses (Eq. 1 and 2), terms, methods (Table 1). Objectives are L^SSL in the space of g."""
