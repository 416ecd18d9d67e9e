{% macro cdc_segment_filter(plan, segment) -%}
{%- set p = plan.position -%}
relid = {{ plan.relid }} and kind = 'row' and generation = {{ p.generation }} and batch_id <= {{ p.batch }} and commit_lsn < {{ p.upto }}
    and {{ segment.inside }}
{%- endmacro %}
