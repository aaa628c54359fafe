"""The asyncio shell around `scheduling`: it observes and acts, and decides nothing by itself."""
