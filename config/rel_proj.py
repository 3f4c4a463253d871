# A bias for each distance, predicted from the query, as in Inkling (Thinking Machines 2026).
pos = "rel_proj"
