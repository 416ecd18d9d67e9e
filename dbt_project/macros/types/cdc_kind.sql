{%- macro cdc_kind(column) -%}
{%- set type = cdc_base(column) -%}
{%- if column.type_kind not in ['b', 'd'] -%}string
{%- elif type == 'boolean' -%}bool
{%- elif type in ['smallint', 'integer'] -%}int
{%- elif type.endswith('[]') -%}{{ 'string' if type == 'box[]' else 'array' }}
{%- elif type in ['bigint', 'oid', 'xid', 'cid'] -%}bigint
{%- elif type == 'xid8' -%}decimal
{%- elif type == 'real' -%}float
{%- elif type == 'double precision' -%}double
{%- elif type == 'date' -%}date
{%- elif type == 'bytea' -%}binary
{%- elif type.startswith('timestamp') and type.endswith(' without time zone') -%}timestamp
{%- elif type.startswith('timestamp') and type.endswith(' with time zone') -%}timestamptz
{%- elif type.startswith('numeric(') and type.endswith(')') -%}
  {%- set precision, scale = (type[8:-1].split(',')[0] | int, type[8:-1].split(',')[1] | int) -%}
  {%- if 0 <= scale and scale <= precision and precision <= 38 -%}decimal{%- else -%}string{%- endif -%}
{%- else -%}string
{%- endif -%}
{%- endmacro -%}
