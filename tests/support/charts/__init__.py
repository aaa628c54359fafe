"""The chart, with Helm and kubectl as users have them."""
