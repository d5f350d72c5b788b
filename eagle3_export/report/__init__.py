"""Reports over the exports of one or more runs: terminal, HTML, PNG, CSV, JSON, and a regression gate."""
