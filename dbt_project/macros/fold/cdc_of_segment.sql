{% macro cdc_of_segment(plan, segment) -%}
{%- set p = plan.position -%}
from {% if segment.kept %}{{ segment.kept }} where true
{%- else -%}
{{ cdc_events_at(p) }} where relid = {{ plan.relid }} and kind = 'row' and generation = {{ p.generation }} and batch_id <= {{ p.batch }}
    and commit_lsn < {{ p.upto }} and {{ segment.inside }}
{%- endif -%}
{%- endmacro %}
