{%- macro cdc_spark_type(column) -%}
{%- set kind = cdc_kind(column) | trim -%}
{%- if kind == 'bool' -%}boolean
{%- elif kind == 'timestamp' -%}timestamp_ntz
{%- elif kind == 'timestamptz' -%}timestamp
{%- elif kind == 'decimal' -%}
{%- set type = cdc_base(column) -%}decimal{{ '(20,0)' if type == 'xid8' else type[7:] }}
{%- elif kind == 'array' -%}array<{{ cdc_spark_type({'type': cdc_base(column)[:-2], 'type_kind': 'b', 'base_type': none}) | trim }}>
{%- else -%}{{ kind }}
{%- endif -%}
{%- endmacro -%}
