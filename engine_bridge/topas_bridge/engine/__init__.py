"""Everything that touches SGLang's own objects: one small file per interface that differs between versions."""
