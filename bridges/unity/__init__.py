"""The Unity package (com.rtcontrol.client/, C# sources) and what keeps it importable: `meta`, `lint`."""
