{%- macro cdc_canonical(value, column) -%}
{%- set kind = cdc_kind(column) | trim -%}
{%- if kind == 'string' -%}{{ value }}
{%- elif kind == 'bool' -%}case when {{ value }} then 't' when not {{ value }} then 'f' end
{%- elif kind in ['int', 'bigint', 'date', 'timestamp'] -%}cast({{ value }} as string)
{%- elif kind == 'decimal' -%}
  {%- set scale = (cdc_spark_type(column) | trim)[:-1].split(',')[1] | int -%}
  {#- Spark prints small decimals of a large scale with an exponent -#}
  {%- if scale <= 6 -%}cast({{ value }} as string)
  {%- else -%}replace(format_number({{ value }}, {{ scale }}), ',', '')
  {%- endif -%}
{%- elif kind == 'timestamptz' -%}
concat(cast(timestampadd(MICROSECOND, unix_micros({{ value }}), timestamp_ntz'1970-01-01 00:00:00') as string), '+00')
{%- elif kind == 'binary' -%}concat('\\x', lower(hex({{ value }})))
{%- elif kind == 'array' -%}{{ _cdc_array_text(value, {'type': cdc_base(column)[:-2], 'type_kind': 'b', 'base_type': none}) }}
{%- elif kind == 'float' -%}{{ _cdc_float_text(value, 6) }}
{%- elif kind == 'double' -%}{{ _cdc_float_text(value, 15) }}
{%- endif -%}
{%- endmacro -%}
