{%- macro cdc_kept(relation, what, relid) -%}
cdc_{{ what }}_{{ relation.schema }}_{{ relid }}
{%- endmacro -%}
