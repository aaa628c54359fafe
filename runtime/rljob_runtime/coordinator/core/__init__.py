"""Core: settings, errors and asyncio helpers of the whole coordinator."""
